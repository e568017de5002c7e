"""Creates and removes datasets so that a kill at any write leaves nothing behind."""
