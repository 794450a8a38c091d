"""What answers a commitment, as the OpenAPI document describes it.

The answers themselves are put together from bytes (`answers`): they never pass through here.
"""

from typing import Any

from pydantic import BaseModel, Field


class ReceiptView(BaseModel):
    """A signed polo/receipt/1 record."""

    format: str
    enrolment: str = Field(description="Digest of the enrolment.")
    shard: int = Field(description="Number of the shard; 0 for the start.")
    root: str = Field(description="Root that was committed to.")
    time: int = Field(description="When, in seconds since 1970.")
    origin: str = Field(description="Name of the log.")
    index: int = Field(description="Place in the log.")
    next_nonce: str = Field(description="Salted hash of the next shard's nonce.")
    signature: str = Field(description="The issuer's, over all of it.")


class NonceView(BaseModel):
    """A polo/nonce/1 record: the secret that the next mark comes from."""

    format: str
    shard: int = Field(description="The shard that it is for.")
    nonce: str
    salt: str
    path: list[str] = Field(description="Empty: a live nonce needs none.")


class PlaceView(BaseModel):
    """That an entry is in the log."""

    entry: dict[str, Any] = Field(description="The signed polo/entry/1 record.")
    index: int = Field(description="Its place.")
    size: int = Field(description="Size of the tree that the path leads to the root of.")
    path: list[str] = Field(description="Hashes from the leaf up (RFC 6962).")
    checkpoint: str = Field(description="The signed checkpoint of that tree, as a C2SP note.")


class ReceiptedView(BaseModel):
    """The receipt, the next nonce, and the place in the log."""

    receipt: ReceiptView
    nonce: NonceView | None = Field(description="Null for everybody but the chain's prover.")
    inclusion: PlaceView


class ChallengeView(BaseModel):
    """What was drawn."""

    id: str
    kind: str = Field(description="What is asked for: a checkpoint, or a replay of steps.")
    due: int = Field(description="Until when, in seconds since 1970.")


class WaitingView(BaseModel):
    """The entry is in the log; its receipt waits until the challenge is answered."""

    challenge: ChallengeView
