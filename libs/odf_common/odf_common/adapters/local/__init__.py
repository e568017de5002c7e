"""Datasets in a local folder: `$ODF_HOME/datasets` and `$ODF_HOME/names` (wire-facts §6.1).

Every write is durable when its call returns: the file is fsynced, renamed into place, and its folder fsynced.
This package imports none of its modules: commands need few of them.
"""
