"""Limits of the server: sizes, counts and timeouts.

Query length and number of results are limited for the command line too: `MAX_QUERY_CHARS` and `MAX_RESULTS` in
`tercet.search.searcher`. A network is an IPv4 address, or a /64 network of IPv6 addresses.
"""

# Uploaded query images
MAX_UPLOAD_BYTES = 20 << 20
MAX_UPLOAD_READ_BYTES = 4 * MAX_UPLOAD_BYTES  # a too large body is read up to here, so that its sender gets the 413
MAX_UPLOAD_PIXELS = 50_000_000
MAX_CONCURRENT_UPLOADS = 8
MAX_UPLOADS_PER_NETWORK = 4  # so that slow uploads of one client leave room for others
MAX_WAITING_UPLOADS_PER_NETWORK = 16
MAX_CONCURRENT_UPLOAD_DECODINGS = 1  # each may take several hundred megabytes
UPLOAD_TIMEOUT_SECONDS = 60
UPLOAD_START_SECONDS = 5  # an upload may take this long, and further seconds only for bytes already received
MIN_UPLOAD_BYTES_PER_SECOND = 64 << 10

# Connections
MAX_CONNECTIONS = 512  # further ones get 503
MAX_CONNECTIONS_PER_NETWORK = 256
REQUEST_TIMEOUT_SECONDS = 10  # to send the head of a request, on a new connection or after a response
SHUTDOWN_TIMEOUT_SECONDS = 10

# Guessed tokens
MAX_WRONG_TOKENS = 10  # different ones of one network, then 429
WRONG_TOKEN_PAUSE_SECONDS = 60
MAX_REMEMBERED_NETWORKS = 10_000

# Work in progress; requests beyond these limits get 503
MAX_QUERIES_PER_BATCH = 32
MAX_QUEUED_QUERIES = 256

# Requests and answers
MAX_COMPARED_INDEXES = 3
MAX_LISTED_RUNS = 500  # most recent first
MAX_SETTING_CHARS = 40  # value of an objective's setting

# Memory
MAX_THUMBNAIL_CACHE_BYTES = 64 << 20
