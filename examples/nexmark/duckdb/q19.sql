SELECT event_time, auction, bidder, price, extra,
  row_number() OVER (PARTITION BY auction ORDER BY price DESC, arrival) AS place
FROM bids
QUALIFY place <= 10
