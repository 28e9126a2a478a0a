// Package rootfs writes the file system of the container image as a tar archive.
//
// It exists for one attribute: the binary must be able to open port 53 without
// being root, which Linux grants by a file capability. setcap needs root, and
// docker build's COPY loses what setcap did, at least with the classic builder.
// ADD of an archive keeps it, and an archive can be written by anybody.
package rootfs

import (
	"archive/tar"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"path"
	"time"
)

// Write writes an archive with program as /coredns and the bundle of CA
// certificates where Go's crypto/x509 looks first. It depends on nothing but the
// two files' contents: everything belongs to root and is of the year 1970, so
// that equal files make equal images.
func Write(w io.Writer, program, certs string) error {
	tw := tar.NewWriter(w)
	if err := add(tw, "coredns", program, 0o755, map[string]string{xattrCapability: netBindService()}); err != nil {
		return err
	}
	const bundle = "etc/ssl/certs/ca-certificates.crt"
	for _, dir := range []string{"etc", "etc/ssl", path.Dir(bundle)} {
		h := &tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755, ModTime: time.Unix(0, 0)}
		if err := tw.WriteHeader(h); err != nil {
			return fmt.Errorf("add /%s: %w", dir, err)
		}
	}
	if err := add(tw, bundle, certs, 0o644, nil); err != nil {
		return err
	}
	return tw.Close()
}

// add adds the file from as name.
func add(tw *tar.Writer, name, from string, mode int64, pax map[string]string) error {
	f, err := os.Open(from)
	if err != nil {
		return fmt.Errorf("add /%s: %w", name, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("add /%s: %w", name, err)
	}
	h := &tar.Header{
		Typeflag:   tar.TypeReg,
		Name:       name,
		Mode:       mode,
		Size:       info.Size(),
		ModTime:    time.Unix(0, 0),
		PAXRecords: pax,
	}
	if err := tw.WriteHeader(h); err != nil {
		return fmt.Errorf("add /%s: %w", name, err)
	}
	if _, err := io.Copy(tw, f); err != nil {
		return fmt.Errorf("add /%s: %w", name, err)
	}
	return nil
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
