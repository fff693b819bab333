"""One file per format of samples, as `network/dataformats.py` lists them; and `folder`, which finds
out what a folder holds, and `memory`, for objects in place of a path. What formats share is in the
package above."""
