SELECT greatest(a.event_time, p.event_time) AS event_time, p.name, p.city, p.state, a.id AS auction
FROM auctions a JOIN persons p ON a.seller = p.id
WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')
