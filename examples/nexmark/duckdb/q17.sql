SELECT max(event_time) AS event_time, auction, count(*) AS bids, count(CASE WHEN price < 10000 THEN 1 END) AS low,
  min(price) AS lowest, max(price) AS highest, avg(price) AS mean, CAST(sum(price) AS BIGINT) AS total
FROM bids
GROUP BY auction
