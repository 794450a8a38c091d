"""The registry's pages for people: rendered here, no build step, readable without scripts."""
