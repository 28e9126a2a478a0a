package resolvconf

import (
	"bytes"
	"context"
	"time"
)

// pace is how soon a file is looked at.
type pace struct {
	quiet   time.Duration // after the last event; the parts of one change come within milliseconds
	most    time.Duration // after the first event, at the latest
	slow    time.Duration // without any event, for what sends none, such as a network's file system
	unaided time.Duration // where nothing can be watched: there are no more watches, or no right to read a directory
}

// usual makes a change known within half a second.
//
//nolint:gochecknoglobals // a constant
var usual = pace{quiet: 100 * time.Millisecond, most: 400 * time.Millisecond, slow: 5 * time.Second, unaided: 500 * time.Millisecond}

// Follow calls changed each time that what [Read] returns is another than before,
// content or error, until ctx is over. What it returned before the first call is content
// and err. One call is over before the next begins. Whether it was written in place,
// renamed into place, or is behind a symbolic link that was, makes no difference.
func Follow(ctx context.Context, path string, content []byte, err error, changed func(content []byte, err error)) {
	s := process.subscribe()
	defer s.close()
	f := follower{
		pace:  usual,
		read:  func() ([]byte, error) { return Read(path) },
		watch: func() bool { return s.watch(places(path)) },
		woken: s.woken,
		last:  content, failure: reason(err),
	}
	f.run(ctx, changed)
}

// follower follows one file.
type follower struct {
	pace
	read  func() ([]byte, error)
	watch func() bool     // sets the watches for where the file is now, and reports whether it could
	woken <-chan struct{} // receives when something has happened there

	last    []byte
	failure string // why there is no content; empty: there is
}

func (f *follower) run(ctx context.Context, changed func([]byte, error)) {
	watched := f.watch()
	f.look(changed) // it may have changed before it was watched
	look := time.NewTimer(f.interval(watched))
	defer look.Stop()
	var first time.Time // of the events since the last look
	for {
		select {
		case <-f.woken:
			now := time.Now()
			if first.IsZero() {
				first = now
			}
			look.Reset(max(1, min(f.quiet, first.Add(f.most).Sub(now))))
		case <-look.C:
			first = time.Time{}
			// Watched first: what changes after the look is then an event.
			watched = f.watch()
			f.look(changed)
			look.Reset(f.interval(watched))
		case <-ctx.Done():
			return
		}
	}
}

// interval returns how long to wait for an event before the file is looked at all the
// same.
func (f *follower) interval(watched bool) time.Duration {
	if watched {
		return f.slow
	}
	return f.unaided
}

// look reads the file and tells what is new.
func (f *follower) look(changed func([]byte, error)) {
	content, err := f.read()
	if why := reason(err); why != f.failure || !bytes.Equal(content, f.last) {
		f.last, f.failure = content, why
		changed(content, err)
	}
}

func reason(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
