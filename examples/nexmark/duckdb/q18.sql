SELECT event_time, auction, bidder, price, extra
FROM bids
QUALIFY row_number() OVER (PARTITION BY bidder, auction ORDER BY event_time DESC, arrival) = 1
