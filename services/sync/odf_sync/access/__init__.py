"""Accounts, tokens, roles: who may do what with which dataset. `rules` decides, `access_store` stores.

Only sync changes the database; commands call it over gRPC. `odf_sync.http.authorization` authorizes HTTP requests.
"""
