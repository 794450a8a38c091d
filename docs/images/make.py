"""Draws `chain.svg` and `shard.svg`, the pictures of the README and of docs/architecture.md.

Run it after a change: `python docs/images/make.py`. Standard library only. Text stays text, and
each picture has a light ground of its own, so that it reads on white and on dark pages.
"""

import html
import re
from collections.abc import Iterable
from pathlib import Path

INK, MUTED, RULE, GROUND = "#1d2530", "#56616f", "#c3cbd5", "#fbfcfd"
GREEN, GREEN_SOFT = "#1a7f4b", "#e7f4ec"
BLUE, BLUE_SOFT = "#3f6288", "#eaf0f7"
AMBER, AMBER_SOFT = "#8a5a00", "#fff4d9"
SANS = "system-ui, 'Segoe UI', Helvetica, Arial, sans-serif"
MONO = "ui-monospace, Menlo, Consolas, 'Liberation Mono', monospace"


def tag(name: str, content: str = "", **attributes: str | float) -> str:
    """An element; the content is markup already."""
    given = "".join(f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
                    for key, value in attributes.items())  # fmt: skip
    return f"<{name}{given}>{content}</{name}>" if content else f"<{name}{given}/>"


def text(x: float, y: float, words: str, **attributes: str | float) -> str:
    """A line of text; `W_0` and the like get a lowered index."""
    lowered = re.sub(
        r"_(\w)",
        r'<tspan dy="3" font-size="75%">\1</tspan><tspan dy="-3">&#8203;</tspan>',
        html.escape(words),
    )
    return tag("text", lowered, **{"x": x, "y": y, "fill": INK, "font_size": 13, **attributes})


def box(x: float, y: float, width: float, height: float, **attributes: str | float) -> str:
    """A rounded box."""
    given = {"rx": 9, "fill": "#ffffff", "stroke": RULE, "stroke_width": 1.25, **attributes}
    return tag("rect", x=x, y=y, width=width, height=height, **given)


def arrow(*points: tuple[float, float], colour: str = MUTED, width: float = 1.5) -> str:
    """A line with a head at its end, which points along the last stretch."""
    (x0, y0), (x1, y1) = points[-2:]
    dx, dy = (x1 > x0) - (x1 < x0), (y1 > y0) - (y1 < y0)
    head = f"M{x1} {y1}l{-9 * dx - 4.5 * dy} {-9 * dy - 4.5 * dx}"
    head += f"l{9 * dy} {9 * dx}z"
    line = " ".join(f"{x},{y}" for x, y in (*points[:-1], (x1 - 6 * dx, y1 - 6 * dy)))
    return tag("polyline", points=line, fill="none", stroke=colour, stroke_width=width) + tag(
        "path", d=head, fill=colour
    )


def picture(width: int, height: int, title: str, description: str, parts: Iterable[str]) -> str:
    """A whole SVG file."""
    ground = box(1, 1, width - 2, height - 2, rx=16, fill=GROUND, stroke="#d9dfe6")
    inside = "\n".join((tag("title", title), tag("desc", description), ground, *parts))
    return tag(
        "svg",
        f"\n{inside}\n",
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width} {height}",
        width=width,
        height=height,
        role="img",
        font_family=SANS,
    )


def checkpoint(x: float, name: str) -> Iterable[str]:
    """A checkpoint of the chain."""
    yield box(x, 62, 84, 66, stroke=INK)
    yield text(x + 42, 92, name, text_anchor="middle", font_size=19, font_weight=600)
    yield text(x + 42, 115, "checkpoint", text_anchor="middle", font_size=11.5, fill=MUTED)


def shard(x: float, number: int) -> Iterable[str]:
    """A stretch of training, between two checkpoints."""
    yield box(x, 62, 172, 66, rx=33, fill=GREEN_SOFT, stroke=GREEN)
    yield text(x + 86, 91, f"shard {number}", text_anchor="middle", font_size=15, font_weight=600)
    words = f"train, press in mark {number}"
    yield text(x + 86, 112, words, text_anchor="middle", font_size=11.5, fill=MUTED)


def derivation(x: float, number: int) -> Iterable[str]:
    """How a mark is made from the checkpoint before it."""
    yield box(x, 166, 328, 152, rx=12, fill="#ffffff", stroke="#dde3ea")
    inputs = (
        f"root of W_{number - 1}",
        f"shard number {number}",
        f"nonce μ_{number}",
        "identity, terms",
    )
    for at, words in enumerate(inputs):
        y = 180 + 32 * at
        style = {"fill": AMBER_SOFT, "stroke": "#e3c77e"} if at == 2 else {"fill": "#f4f6f8"}
        yield box(x + 14, y, 122, 25, rx=6, **style)
        yield text(x + 75, y + 17, words, text_anchor="middle", font_size=12)
        yield tag("path", d=f"M{x + 136} {y + 12.5}H{x + 146}", stroke=MUTED)
    yield tag("path", d=f"M{x + 146} 192.5V288.5", stroke=MUTED, fill="none")
    yield arrow((x + 146, 240.5), (x + 164, 240.5))
    yield box(x + 164, 224, 70, 33, rx=6, fill=INK, stroke=INK)
    yield text(x + 199, 245, "SHA-256", text_anchor="middle", font_size=12, fill="#ffffff",
               font_weight=600)  # fmt: skip
    yield arrow((x + 234, 240.5), (x + 250, 240.5))
    yield box(x + 250, 216, 66, 49, fill=GREEN_SOFT, stroke=GREEN)
    middle = x + 283
    yield text(middle, 237, f"mark {number}", text_anchor="middle", font_weight=600)
    yield text(middle, 254, "bits, key", text_anchor="middle", font_size=11, fill=MUTED)
    yield arrow((x + 42, 128), (x + 42, 180))
    yield arrow((middle, 216), (middle, 128), colour=GREEN)


def reading(x: float, number: int) -> Iterable[str]:
    """One step of the verifier."""
    yield box(x, 374, 200, 60, stroke=BLUE)
    yield text(x + 100, 398, f"derive mark {number} from W_{number - 1}", text_anchor="middle")
    words = f"read it in W_{number}: η, log₂ p"
    yield text(x + 100, 420, words, text_anchor="middle", font_weight=600)


def chain() -> str:
    """The chain of marks, and the verifier walking back."""
    parts = [text(30, 40, "Training, forwards", font_size=15, font_weight=600, fill=GREEN)]
    for x, name in ((30, "W_0"), (384, "W_1"), (738, "W_2"), (884, "W_S")):
        parts += checkpoint(x, name)
    for number, x in ((1, 30), (2, 384)):
        parts += shard(x + 133, number)
        parts += [arrow((x + 84, 95), (x + 133, 95)), arrow((x + 305, 95), (x + 354, 95))]
        parts += derivation(x, number)
    parts.append(text(853, 99, "· · ·", text_anchor="middle", font_size=18, fill=MUTED))
    notes = (
        "Bits, places and key of a mark all",
        "come from one hash. So mark 2",
        "cannot be known before W_1 exists;",
        "who changes a checkpoint must",
        "press in every later mark again.",
    )
    parts += [text(738, 196 + 22 * at, words, fill=MUTED) for at, words in enumerate(notes)]
    parts.append(box(18, 336, 964, 132, rx=12, fill=BLUE_SOFT, stroke="#cfdbe8"))
    title = {"font_size": 15, "font_weight": 600, "fill": BLUE, "text_anchor": "end"}
    parts.append(text(968, 361, "Verification, backwards", **title))
    parts.append(box(786, 374, 182, 60, stroke=BLUE))
    parts.append(text(877, 398, "check every signature,", text_anchor="middle"))
    parts.append(text(877, 420, "test W_S on public data", text_anchor="middle", font_weight=600))
    parts += [*reading(503, 2), *reading(149, 1)]
    parts.append(text(745, 409, "· · ·", text_anchor="middle", font_size=18, fill=BLUE))
    parts += [
        arrow((786, 404), (764, 404), colour=BLUE),
        arrow((725, 404), (703, 404), colour=BLUE),
    ]
    parts.append(arrow((503, 404), (349, 404), colour=BLUE))
    words = (
        "It shows order and ownership. That somebody trained for it takes more: receipts, replay."
    )
    parts.append(text(500, 456, words, text_anchor="middle", font_size=12.5, fill=AMBER))
    return picture(
        1000,
        486,
        "A chain of marks",
        "Each mark is hashed from the root of the checkpoint before it, the shard number, a nonce "
        "and the identity. The verifier walks from the last checkpoint back to the first.",
        parts,
    )


ROOMS = {
    "While training": (
        36,
        GREEN,
        GREEN_SOFT,
        (
            (
                "watermark.mark",
                "bits, positions and key of mark x,",
                "from root, x, nonce and identity",
            ),
            ("embedding.hook", "runs before every optimizer step;", "nothing of yours is wrapped"),
            ("embedding.embedder", "adds the mark’s gradient", "to the gradients of the carrier"),
            ("prover.monitor", "watches η from epoch to epoch,", "warns if it does not settle"),
            ("embedding.finishing", "turns the last wrong bits", "within the terms’ budget"),
        ),
    ),
    "Sealing": (
        368,
        AMBER,
        AMBER_SOFT,
        (
            (
                "storage.writer",
                "files first; replacing the manifest",
                "is what makes the shard count",
            ),
            ("receipts", "root of W_x in, next nonce out;", "live, with a receipt from the log"),
            ("protocol.commitment", "opens just those parts of W_x", "that carry the mark"),
            ("weights.hashing", "commits to all weights:", "a hash tree, and its root"),
            ("privacy.obfuscation", "noise on other weights,", "never on the mark"),
        ),
    ),
    "Verifying": (
        700,
        BLUE,
        BLUE_SOFT,
        (
            ("storage.folder", "signatures, sizes, digests;", "nothing in the folder is trusted"),
            ("protocol.chain", "from the newest shard to the", "oldest: nonce, then seed"),
            (
                "watermark.reading",
                "derives the mark again and reads",
                "it out of W_x in exact integers",
            ),
            ("verifier.accuracy", "tests stored weights", "on the task’s public data"),
            ("verifier.verdict", "every check, what it shows", "and what it does not show"),
        ),
    ),
}
"""Columns: where they stand, their colours, and their rooms from the top."""


def rooms() -> str:
    """A shard's way: down, up, and down again on the verifier's side."""
    parts = []
    for name, (x, colour, soft, column) in ROOMS.items():
        parts.append(text(x, 42, name, font_size=15, font_weight=600, fill=colour))
        for at, (room, *lines) in enumerate(column):
            y = 60 + 104 * at
            parts.append(box(x, y, 264, 76, fill=soft, stroke=colour))
            parts.append(text(x + 16, y + 25, room, font_family=MONO, font_size=13.5,
                              font_weight=600))  # fmt: skip
            parts += [text(x + 16, y + 45 + 18 * row, line, font_size=12.5, fill=MUTED)
                      for row, line in enumerate(lines)]  # fmt: skip
            if at:
                ends = ((x + 132, y - 28), (x + 132, y))
                parts.append(arrow(*(reversed(ends) if name == "Sealing" else ends), colour=colour))
    parts += [
        arrow((300, 514), (368, 514), colour=GREEN),
        text(333, 505, "η is high", text_anchor="middle", font_size=11.5, fill=MUTED),
        arrow((368, 98), (300, 98), colour=AMBER),
        text(335, 89, "next mark", text_anchor="middle", font_size=11.5, fill=MUTED),
        arrow((632, 98), (700, 98), colour=BLUE),
        text(665, 89, "the proof", text_anchor="middle", font_size=11.5, fill=MUTED),
    ]
    return picture(
        1000,
        582,
        "The way of a shard through the code",
        "A mark is pressed in while training, the shard is sealed and stored, the next mark is "
        "derived; on the other side a verifier reads the folder and comes to a verdict.",
        parts,
    )


def main() -> None:
    """Write both pictures beside this file."""
    here = Path(__file__).parent
    (here / "chain.svg").write_text(chain() + "\n", encoding="utf-8")
    (here / "shard.svg").write_text(rooms() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
