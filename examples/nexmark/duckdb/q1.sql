SELECT event_time, auction, bidder, CAST(0.908 * CAST(price AS DECIMAL(15, 0)) AS DECIMAL(18, 3)) AS price, extra
FROM bids
