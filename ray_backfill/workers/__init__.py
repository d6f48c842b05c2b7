"""Ray for every product: sessions, tasks side by side, DDP, waiting, progress from workers."""

import os

# Otherwise a thread that outlives the session, or that notices too late that Ray has died, starts a second Ray with its
# next call, and Ray says so on the terminal. Ray reads this when it is imported.
os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")
