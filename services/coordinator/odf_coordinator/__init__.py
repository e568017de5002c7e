"""The only writer of heads: admits proposals, plans transforms, announces commits."""
