"""Verifies datasets: integrity of chains and objects, replay of transforms, and signatures."""
