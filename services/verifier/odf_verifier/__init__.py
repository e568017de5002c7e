"""Verifies datasets: integrity of bytes and chains, replay of transforms, signatures."""
