"""What one document may cost, for the program and for the children that read. Plain numbers."""

MEMORY_BYTES = 1024**3
"""Of a child: its address space on Linux, what it holds in memory elsewhere."""

ANSWER_CPU_S = 8
"""Computing for one page, or for opening a file."""

MOST_BYTES = 512 * 1024**2
MOST_PAGES = 5000

MOST_LOST_PAGES = 20
"""Pages that may cost a child its life before the rest of a file is given up."""

MOST_SILENT_PAGES = 3
"""Those among them that took all the time there is."""

DOCUMENT_S, PAGE_S = 120.0, 0.5
"""A document may take so long, and so much more a page; what is unread then stays unread."""
