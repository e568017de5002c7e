"""The only service that moves heads: it admits proposals, runs transforms, and announces commits."""
