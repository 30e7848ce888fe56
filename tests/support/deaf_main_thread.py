"""A plug-in after which a server's main thread takes no signals: another one always does, as may happen by chance."""

import signal
import threading

threading.Thread(target=threading.Event().wait, daemon=True).start()
# Threads that are started from now on take none either.
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
