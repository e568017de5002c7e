SELECT event_time, auction, price, bidder, extra
FROM bids
QUALIFY price = max(price) OVER (PARTITION BY event_time // 10000)
