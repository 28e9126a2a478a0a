package rootfs

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// files writes a program, a bundle of certificates and time zones, out of order.
func files(t *testing.T) Source {
	t.Helper()
	return filesWith(t, "UTC", "Asia/", "Asia/Tokyo")
}

// filesWith is files with other time zones.
func filesWith(t *testing.T, names ...string) Source {
	t.Helper()
	dir := t.TempDir()
	s := Source{
		Program: filepath.Join(dir, "program"),
		Certs:   filepath.Join(dir, "certs"),
		Zones:   filepath.Join(dir, "zones.zip"),
	}
	var packed bytes.Buffer
	zw := zip.NewWriter(&packed)
	for _, name := range names {
		f, err := zw.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		if !os.IsPathSeparator(name[len(name)-1]) {
			io.WriteString(f, "TZif "+name)
		}
	}
	if err := zw.Close(); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{s.Program: "ELF", s.Certs: "PEM", s.Zones: packed.String()} {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func TestWriteGivesTheProgramItsCapability(t *testing.T) {
	var archive bytes.Buffer
	if err := Write(&archive, files(t)); err != nil {
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
		{"usr/", "", 0o755, ""},
		{"usr/local/", "", 0o755, ""},
		{"usr/local/bin/", "", 0o755, ""},
		{"usr/local/bin/coredns", "-> /coredns", 0o777, ""},
		{"etc/", "", 0o755, ""},
		{"etc/ssl/", "", 0o755, ""},
		{"etc/ssl/certs/", "", 0o755, ""},
		{"etc/ssl/certs/ca-certificates.crt", "PEM", 0o644, ""},
		{"usr/share/", "", 0o755, ""},
		{"usr/share/zoneinfo/", "", 0o755, ""},
		{"usr/share/zoneinfo/Asia/", "", 0o755, ""},
		{"usr/share/zoneinfo/Asia/Tokyo", "TZif Asia/Tokyo", 0o644, ""},
		{"usr/share/zoneinfo/UTC", "TZif UTC", 0o644, ""},
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
		if h.Typeflag == tar.TypeSymlink {
			content = []byte("-> " + h.Linkname)
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
	for name, leave := range map[string]func(*Source){
		"add /coredns: ": func(s *Source) { s.Program += "-no" },
		"add /etc/ssl/certs/ca-certificates.crt: ": func(s *Source) { s.Certs += "-no" },
		"add /usr/share/zoneinfo: ":                func(s *Source) { s.Zones += "-no" },
	} {
		s := files(t)
		leave(&s)
		err := Write(io.Discard, s)
		if !errors.Is(err, fs.ErrNotExist) || !bytes.HasPrefix([]byte(err.Error()), []byte(name)) {
			t.Errorf("Write: %v, want %s…: no such file", err, name)
		}
	}
}

func TestWriteTakesNoZoneFromElsewhere(t *testing.T) {
	for _, name := range []string{"../../../coredns", "/coredns", "a//b"} {
		err := Write(io.Discard, filesWith(t, "UTC", name))
		if err == nil || !strings.Contains(err.Error(), name+": a path that leads out") {
			t.Errorf("Write: %v, want an error about %s", err, name)
		}
	}
}
