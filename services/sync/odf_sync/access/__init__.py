"""Accounts, tokens, roles: who may do what with which dataset. `rules` decides, `store` remembers.

Only sync changes what is stored; commands ask it over gRPC. HTTP requests are judged in `odf_sync.http.authorization`.
"""
