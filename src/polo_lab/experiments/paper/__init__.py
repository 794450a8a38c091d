"""The paper's tables and figures, measured anew, each an experiment of its own.

`pairs` names models and data, `subject` trains and verifies them, `published` has the paper's own
figures; `page` sets both beside each other in docs/results.md.
"""
