"""Accounts, tokens and roles, which decide who may access which dataset. `rules` decides, `access_store` stores.

Only sync changes the database; commands call sync over gRPC. `odf_sync.http.authorization` authorizes HTTP requests.
"""
