SELECT event_time, auction, bidder, price, extra
FROM bids
