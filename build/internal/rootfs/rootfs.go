// Package rootfs writes the file system of the container image as a tar archive.
//
// It exists for one attribute: the binary must be able to open port 53 without
// being root, which Linux grants by a file capability. setcap needs root, and
// docker build's COPY loses what setcap did, at least with the classic builder.
// ADD of an archive keeps it, and an archive can be written by anybody.
package rootfs

import (
	"archive/tar"
	"archive/zip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"
)

// Source names the files of which the file system is made.
type Source struct {
	Program string // the static binary
	Certs   string // bundle of CA certificates
	Zones   string // the time zones, as Go's lib/time/zoneinfo.zip holds them
}

const (
	bundle = "etc/ssl/certs/ca-certificates.crt" // where Go's crypto/x509 looks first
	zones  = "usr/share/zoneinfo"                // where Go's time looks first
)

// Write writes an archive with the program as /coredns, and as coredns in the PATH,
// and with certificates and time zones where Go's library looks first. It depends on
// nothing but the contents of s: everything belongs to root and is of the year 1970,
// so that equal files make equal images.
func Write(w io.Writer, s Source) error {
	a := &archive{tw: tar.NewWriter(w), dirs: make(map[string]bool)}
	if err := a.addFile("coredns", s.Program, 0o755, map[string]string{xattrCapability: netBindService()}); err != nil {
		return fmt.Errorf("add /coredns: %w", err)
	}
	if err := a.add(&tar.Header{Typeflag: tar.TypeSymlink, Name: "usr/local/bin/coredns", Linkname: "/coredns", Mode: 0o777}, nil); err != nil {
		return fmt.Errorf("add /usr/local/bin/coredns: %w", err)
	}
	if err := a.addFile(bundle, s.Certs, 0o644, nil); err != nil {
		return fmt.Errorf("add /%s: %w", bundle, err)
	}
	if err := a.addZones(s.Zones); err != nil {
		return fmt.Errorf("add /%s: %w", zones, err)
	}
	return a.tw.Close()
}

// archive is a tar archive in which directories come before what is in them.
type archive struct {
	tw   *tar.Writer
	dirs map[string]bool // those that are in it
}

// addFile adds the file from as name.
func (a *archive) addFile(name, from string, mode int64, pax map[string]string) error {
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	return a.add(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: info.Size(), PAXRecords: pax}, f)
}

// addZones adds every file of the zip file from, in the order of their names.
func (a *archive) addZones(from string) error {
	z, err := zip.OpenReader(from)
	if err != nil {
		return err
	}
	defer z.Close()
	slices.SortFunc(z.File, func(x, y *zip.File) int { return strings.Compare(x.Name, y.Name) })
	for _, f := range z.File {
		if f.FileInfo().IsDir() {
			continue
		}
		if err := a.addZone(f); err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
	}
	return nil
}

func (a *archive) addZone(f *zip.File) error {
	if !fs.ValidPath(f.Name) {
		return errors.New("a path that leads out of its folder")
	}
	content, err := f.Open()
	if err != nil {
		return err
	}
	defer content.Close()
	size := f.FileInfo().Size()
	return a.add(&tar.Header{Typeflag: tar.TypeReg, Name: zones + "/" + f.Name, Mode: 0o644, Size: size}, content)
}

// add adds what h describes, and the directories that it is in. A directory is not
// described by h.
func (a *archive) add(h *tar.Header, content io.Reader) error {
	if err := a.addDir(path.Dir(h.Name)); err != nil {
		return err
	}
	h.ModTime = time.Unix(0, 0)
	if err := a.tw.WriteHeader(h); err != nil {
		return err
	}
	if content == nil {
		return nil
	}
	_, err := io.Copy(a.tw, content)
	return err
}

func (a *archive) addDir(name string) error {
	if name == "." || a.dirs[name] {
		return nil
	}
	if err := a.addDir(path.Dir(name)); err != nil {
		return err
	}
	a.dirs[name] = true
	return a.tw.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: 0o755, ModTime: time.Unix(0, 0)})
}

// xattrCapability is the PAX record in which GNU tar, bsdtar and Docker keep the
// extended attribute security.capability.
const xattrCapability = "SCHILY.xattr.security.capability"

// netBindService returns what `setcap cap_net_bind_service=+ep` would write: a
// struct vfs_cap_data of linux/capability.h, little-endian.
func netBindService() string {
	const (
		revision2 = 0x02000000 // VFS_CAP_REVISION_2: two words of 32 capabilities each
		effective = 0x1        // VFS_CAP_FLAGS_EFFECTIVE: in force at once
		bind      = 1 << 10    // CAP_NET_BIND_SERVICE
	)
	var data []byte
	for _, word := range []uint32{
		revision2 | effective,
		bind, 0, // permitted and inheritable, capabilities 0 to 31
		0, 0, // the same, 32 to 63
	} {
		data = binary.LittleEndian.AppendUint32(data, word)
	}
	return string(data)
}
