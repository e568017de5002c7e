"""Json and NdJson: `json_lines` reads objects with pyarrow, `json_exact` those whose values it would round."""
