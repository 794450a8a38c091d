"""Text that people give a registry, and that it shows to others: one line of it.

Control characters and line breaks would act on terminals and logs, NUL is refused by PostgreSQL,
and marks that turn the direction of writing make one name look like another.
"""

ONE_LINE = r"^[^\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]*$"
"""The pattern of such a text, as regular expressions of JSON Schema have it."""
