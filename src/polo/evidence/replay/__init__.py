"""Level replay: steps of the declared computation are drawn and run again."""
