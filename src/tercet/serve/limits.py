"""Limits of the server: sizes, counts and timeouts.

Query length and number of results are limited for the command line too: `MAX_QUERY_CHARS` and `MAX_RESULTS` in
`tercet.search.searcher`.
"""

# Uploaded query images
MAX_UPLOAD_BYTES = 20 << 20
MAX_UPLOAD_READ_BYTES = 4 * MAX_UPLOAD_BYTES  # a too large body is read up to here, so that its sender gets the 413
MAX_UPLOAD_PIXELS = 50_000_000
MAX_CONCURRENT_UPLOADS = 8  # each may take several hundred megabytes while it is decoded
UPLOAD_TIMEOUT_SECONDS = 60

# Connections
MAX_CONNECTIONS = 512  # further ones get 503
FIRST_REQUEST_TIMEOUT_SECONDS = 10
SHUTDOWN_TIMEOUT_SECONDS = 10

# Work in progress; requests beyond these limits get 503
MAX_QUERIES_PER_BATCH = 32
MAX_QUEUED_QUERIES = 256

# Requests and answers
MAX_COMPARED_INDEXES = 3
MAX_LISTED_RUNS = 500  # most recent first
MAX_SETTING_CHARS = 40  # value of an objective's setting

# Memory
MAX_THUMBNAIL_CACHE_BYTES = 64 << 20
