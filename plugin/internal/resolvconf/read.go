package resolvconf

import "steadfast.internal/plugin/internal/smallfile"

// maxSize bounds what is read: a list of 4,000 domains of the greatest length.
const maxSize = 1 << 20

// Read returns the content of a file. It does not wait for the writer of a FIFO, and
// refuses what is no regular file or larger than a mebibyte. Errors name the file.
func Read(path string) ([]byte, error) { return smallfile.Read(path, maxSize) }
