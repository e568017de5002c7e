"""Json and NdJson. `json_lines` parses objects with pyarrow, `json_exact` those that pyarrow would round or refuse."""
