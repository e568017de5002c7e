SELECT DISTINCT p.event_time // 10000 * 10000 AS event_time, p.id, p.name
FROM persons p JOIN auctions a
  ON p.id = a.seller AND p.event_time // 10000 = a.event_time // 10000
