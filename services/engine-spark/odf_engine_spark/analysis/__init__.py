"""What an analysed plan means: time, completeness, retention, joins, windows; and what SQL may do. Runs nothing."""
