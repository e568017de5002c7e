"""The only writer of heads: admits proposals, runs transforms, announces commits."""
