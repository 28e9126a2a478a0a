package smallfile

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestWhatIsReadIsSmallAndRegular(t *testing.T) {
	const limit = 8
	for claim, tc := range map[string]struct {
		make func(path string) error // nil: nothing is there
		want string
		err  string // part of it; empty: none
	}{
		"a file":                  {func(path string) error { return os.WriteFile(path, []byte("a\n"), 0o600) }, "a\n", ""},
		"an empty file":           {func(path string) error { return os.WriteFile(path, nil, 0o600) }, "", ""},
		"as much as may be":       {func(path string) error { return os.WriteFile(path, []byte("12345678"), 0o600) }, "12345678", ""},
		"one octet more":          {func(path string) error { return os.WriteFile(path, []byte("123456789"), 0o600) }, "", "more than 8 octets"},
		"a directory":             {func(path string) error { return os.Mkdir(path, 0o700) }, "", "a directory"},
		"a FIFO without a writer": {func(path string) error { return syscall.Mkfifo(path, 0o600) }, "", "a FIFO"},
		"a device without an end": {func(path string) error { return os.Symlink("/dev/zero", path) }, "", "a device"},
		"a link to itself":        {func(path string) error { return os.Symlink(path, path) }, "", "too many levels"},
		"nothing":                 {nil, "", "no such file"},
	} {
		t.Run(claim, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "conf")
			if tc.make != nil {
				if err := tc.make(path); err != nil {
					t.Fatal(err)
				}
			}
			content, err := Read(path, limit)
			if string(content) != tc.want || (err == nil) != (tc.err == "") {
				t.Fatalf("Read = %q, %v; want %q and an error with %q", content, err, tc.want, tc.err)
			}
			if err != nil && (!strings.Contains(err.Error(), tc.err) || !strings.Contains(err.Error(), path)) {
				t.Errorf("error %q does not say %q and name the file", err, tc.err)
			}
		})
	}
}
