package rootfs

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// files writes a program and a bundle of certificates.
func files(t *testing.T) (program, certs string) {
	t.Helper()
	dir := t.TempDir()
	program, certs = filepath.Join(dir, "program"), filepath.Join(dir, "certs")
	for name, content := range map[string]string{program: "ELF", certs: "PEM"} {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return program, certs
}

func TestWriteGivesTheProgramItsCapability(t *testing.T) {
	program, certs := files(t)
	var archive bytes.Buffer
	if err := Write(&archive, program, certs); err != nil {
		t.Fatal(err)
	}
	type entry struct {
		name, content string
		mode          int64
		capability    string
	}
	want := []entry{
		// As getfattr shows it after setcap cap_net_bind_service=+ep.
		{"coredns", "ELF", 0o755, "\x01\x00\x00\x02\x00\x04\x00\x00" + "\x00\x00\x00\x00" + "\x00\x00\x00\x00\x00\x00\x00\x00"},
		{"etc/", "", 0o755, ""},
		{"etc/ssl/", "", 0o755, ""},
		{"etc/ssl/certs/", "", 0o755, ""},
		{"etc/ssl/certs/ca-certificates.crt", "PEM", 0o644, ""},
	}
	tr := tar.NewReader(&archive)
	for _, w := range want {
		h, err := tr.Next()
		if err != nil {
			t.Fatalf("%s: %v", w.name, err)
		}
		content, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		got := entry{h.Name, string(content), h.Mode, h.PAXRecords["SCHILY.xattr.security.capability"]}
		if got != w {
			t.Errorf("entry = %+v, want %+v", got, w)
		}
		if h.Uid != 0 || h.Gid != 0 || h.ModTime.Unix() != 0 {
			t.Errorf("%s belongs to %d:%d and is of %v, want root and 1970", h.Name, h.Uid, h.Gid, h.ModTime)
		}
	}
	if h, err := tr.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("one entry more: %v, %v", h, err)
	}
}

func TestWriteNamesTheFileThatIsMissing(t *testing.T) {
	program, certs := files(t)
	for name, args := range map[string][2]string{
		"add /coredns":                           {program + "-no", certs},
		"add /etc/ssl/certs/ca-certificates.crt": {program, certs + "-no"},
	} {
		err := Write(io.Discard, args[0], args[1])
		if !errors.Is(err, fs.ErrNotExist) || !bytes.HasPrefix([]byte(err.Error()), []byte(name)) {
			t.Errorf("Write: %v, want %s…: no such file", err, name)
		}
	}
}
