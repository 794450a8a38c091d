"""The laboratory: models and attacks that the product is measured with. `polo` never imports it."""
