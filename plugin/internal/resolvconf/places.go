package resolvconf

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// maxLinks bounds the symbolic links on the way to a file, as Linux does.
const maxLinks = 40

// place is where it can be seen that a file has changed.
type place struct {
	dir string // to be watched, without symbolic links
	// name is the entry of dir that leads to the file: a link, the file itself, or what
	// is missing on the way.
	name string
}

// path returns the entry's.
func (p place) path() string { return filepath.Join(p.dir, p.name) }

// places returns the places on the way to the file at path: all symbolic links, and
// the end of the way, which is the file or what is missing. A directory that is renamed
// is noticed where it is watched itself.
func places(path string) []place {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil // there is no working directory any more
	}
	var found []place
	dir, ahead := "/", components(abs)
	for links := 0; len(ahead) > 0; {
		name := ahead[0]
		ahead = ahead[1:]
		if name == ".." {
			dir = filepath.Dir(dir)
			continue
		}
		at := place{dir, name}
		info, err := os.Lstat(at.path())
		switch {
		case err == nil && info.Mode()&fs.ModeSymlink != 0 && links < maxLinks:
			links++
			found = append(found, at)
			target, err := os.Readlink(at.path())
			if err != nil {
				return found // it changes just now, which is an event
			}
			if filepath.IsAbs(target) {
				dir = "/"
			}
			ahead = append(components(target), ahead...)
		case err == nil && info.IsDir() && len(ahead) > 0:
			dir = at.path()
		default:
			return append(found, at)
		}
	}
	return found
}

// components returns the names that a path is made of.
func components(path string) []string {
	return strings.FieldsFunc(path, func(r rune) bool { return r == filepath.Separator })
}
