package status

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"steadfast.internal/plugin/internal/smallfile"
)

// Bounds of a token, in octets: 16 random ones are more than anybody can guess over a
// network, and a page full is a file that was not meant.
const (
	minToken = 16
	maxToken = 1024
)

// access is who may ask for what.
type access struct {
	// tokenFile holds the token; empty: there is none, and nobody steers.
	tokenFile string
	// private says that only users of this host get here. Else to look needs the token
	// as well.
	private bool
}

// ReadToken returns the token that the file holds. Space around it is not part of it.
func ReadToken(file string) (string, error) {
	content, err := smallfile.Read(file, 2*maxToken) // with space around it
	if err != nil {
		return "", err
	}
	token := strings.TrimSpace(string(content))
	switch {
	case len(token) < minToken:
		return "", fmt.Errorf("%s: the token has %d characters, less than %d", file, len(token), minToken)
	case len(token) > maxToken:
		return "", fmt.Errorf("%s: the token has %d characters, more than %d", file, len(token), maxToken)
	case strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }):
		return "", fmt.Errorf("%s: the token has characters that are not printable ASCII", file)
	}
	return token, nil
}

// sameSite reports whether the request is not one that another site made a browser send.
// Whose name leads to this host by a DNS answer of its own has its own name as Host, so
// only what no DNS answer can claim is accepted: an address, or localhost.
func sameSite(r *http.Request) error {
	name := r.Host
	if host, _, err := net.SplitHostPort(r.Host); err == nil {
		name = host
	}
	name = strings.TrimSuffix(strings.TrimPrefix(name, "["), "]")
	if _, err := netip.ParseAddr(name); err != nil && !strings.EqualFold(name, "localhost") {
		return errors.New("the Host is neither an IP address nor localhost")
	}
	for _, origin := range r.Header.Values("Origin") {
		_, host, _ := strings.Cut(origin, "://")
		if !strings.EqualFold(host, r.Host) {
			return errors.New("the Origin is not the Host")
		}
	}
	return nil
}

// errNoToken says that the request has not the token.
var errNoToken = errors.New("wants the token")

// check returns nil if one of those offered is the token.
func (a access) check(offered []string) error {
	token, err := ReadToken(a.tokenFile) // each time, so that it can be changed
	if err != nil {
		return fmt.Errorf("no token can be checked: %w", err)
	}
	want := sha256.Sum256([]byte(token))
	if !slices.ContainsFunc(offered, func(s string) bool {
		got := sha256.Sum256([]byte(s)) // of one length, so that not even that is told by the time
		return subtle.ConstantTimeCompare(got[:], want[:]) == 1
	}) {
		return errNoToken
	}
	return nil
}

// bearer returns the tokens that are offered as RFC 6750, section 2.1 says.
func bearer(r *http.Request) []string {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return nil
	}
	return []string{token}
}

// mayLook returns nil if the request may see the page. A browser can give the token as
// the password of whatever user.
func (a access) mayLook(r *http.Request) error {
	if a.private {
		return nil
	}
	offered := bearer(r)
	if _, password, ok := r.BasicAuth(); ok {
		offered = append(offered, password)
	}
	return a.check(offered)
}

// maySteer returns nil if the request may do something. What a browser sends by itself,
// a password it has stored, is not enough.
func (a access) maySteer(r *http.Request) error {
	offered := bearer(r)
	for _, field := range r.PostForm["token"] {
		offered = append(offered, strings.TrimSpace(field)) // it may be a file's, with its last line's end
	}
	return a.check(offered)
}
