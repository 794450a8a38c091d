"""What prover and verifier must agree on, byte for byte.

Standard library only, and no input or output: bytes go in, checked records or errors come out.

| module | what it fixes |
|---|---|
| `canonical`, `fields`, `records` | documents: canonical JSON, field by field |
| `layout`, `carrier` | what a checkpoint looks like, and where a mark may sit in it |
| `merkle`, `commitment` | the root of a checkpoint, and openings of parts of it |
| `derivation` | seed, bits, positions and key of a mark |
| `detection` | how surprising a reading is |
| `nonces`, `signing` | what the issuer and the prover answer for |
| `chain` | the walk from the newest shard to the oldest |
| `sampler` | the noise of sealing, in integers |

Everything here is specified in docs/protocol.md; `vectors/` holds test vectors for each step.
"""
