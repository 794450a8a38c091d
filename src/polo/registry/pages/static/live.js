// Refreshes the part of a page that is still growing. Without scripts the page reloads itself.
"use strict";

const EVERY = 4000;
const SLOWEST = 60000;

function keyOf(element) {
  return element && element.closest("#live") ? element.getAttribute("href") || element.id : null;
}

function refocus(live, key) {
  if (!key) return;
  for (const element of live.querySelectorAll("a, [id]")) {
    if (keyOf(element) === key) return element.focus({ preventScroll: true });
  }
}

function replace(live, text) {
  const fresh = new DOMParser().parseFromString(text, "text/html").body;
  const said = fresh.firstElementChild ? fresh.firstElementChild.dataset : {};
  const key = keyOf(document.activeElement);
  const scrolled = [...live.querySelectorAll(".wide")].map((box) => box.scrollLeft);
  live.replaceChildren(...fresh.childNodes);
  live.querySelectorAll(".wide").forEach((box, at) => { box.scrollLeft = scrolled[at] || 0; });
  refocus(live, key);
  const place = document.getElementById("said");
  if (place && said.say && place.textContent !== said.say) place.textContent = said.say;
  return said.more === "yes";
}

async function follow(live) {
  let wait = EVERY;
  let tag = "";
  for (let more = true; more;) {
    await new Promise((done) => setTimeout(done, wait));
    if (document.hidden) continue;
    try {
      const answer = await fetch(live.dataset.source, {
        headers: tag ? { "If-None-Match": tag } : {},
        cache: "no-store",
      });
      wait = answer.ok || answer.status === 304 ? EVERY : Math.min(2 * wait, SLOWEST);
      if (answer.status === 404) return;
      if (answer.ok) {
        tag = answer.headers.get("ETag") || "";
        more = replace(live, await answer.text());
      }
    } catch {
      wait = Math.min(2 * wait, SLOWEST);
    }
  }
}

for (const live of document.querySelectorAll("#live[data-source]")) follow(live);

for (const form of document.querySelectorAll("form[data-busy]")) {
  form.addEventListener("submit", () => {
    form.querySelector("[data-busy-place]").textContent = form.dataset.busy;
    form.querySelector("button").disabled = true;
  });
}
// Coming back to a form by the history must not find it disabled.
addEventListener("pageshow", () => {
  for (const button of document.querySelectorAll("form[data-busy] button")) button.disabled = false;
});
