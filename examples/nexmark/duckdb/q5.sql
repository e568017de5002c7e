WITH counts AS (
  SELECT slide * 2000 + 10000 AS event_time, auction, count(*) AS bids
  FROM bids, generate_series(event_time // 2000 - 4, event_time // 2000) AS windows(slide)
  GROUP BY ALL
)
SELECT event_time, auction, bids
FROM counts
QUALIFY bids = max(bids) OVER (PARTITION BY event_time)
