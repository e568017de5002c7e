"""Datasets in local folders: `$ODF_HOME/datasets` and `$ODF_HOME/names` (wire-facts §6.1).

Every write is durable when the call returns: the file is fsynced and renamed into place, then its folder is fsynced.
This package does not import its modules, because commands need only a few of them.
"""
