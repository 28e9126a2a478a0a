package searchexpand

import (
	"errors"
	"testing"

	"github.com/coredns/coredns/plugin/test"

	"github.com/miekg/dns"
)

func TestAFinishedQuestionKeepsItsOutcome(t *testing.T) {
	q := newInquiry(client{})
	first, m := msg(t, dns.RcodeServerFailure), msg(t, 0, host)
	if err := errors.Join(q.WriteMsg(first), q.WriteMsg(m)); err != nil {
		t.Fatal(err)
	}
	if !q.finish(outcome{rcode: dns.RcodeSuccess}) {
		t.Error("finish = false, want true while the walk waits")
	}
	q.abandon(errTimeout)
	if got := q.outcome(); got.msg != m || got.err != nil {
		t.Errorf("outcome = %+v, want the last message and no error", got)
	}
	if err := q.WriteMsg(first); !errors.Is(err, errLate) {
		t.Errorf("WriteMsg after the end = %v, want %v", err, errLate)
	}
}

func TestAnAbandonedQuestionDropsWhatComesLate(t *testing.T) {
	q := newInquiry(client{})
	q.abandon(errTimeout)
	if err := q.WriteMsg(msg(t, 0, host)); !errors.Is(err, errLate) {
		t.Errorf("WriteMsg = %v, want %v", err, errLate)
	}
	if q.finish(outcome{rcode: dns.RcodeSuccess}) {
		t.Error("finish = true, want false when nobody waits")
	}
	if got := q.outcome(); got.msg != nil || !errors.Is(got.err, errTimeout) {
		t.Errorf("outcome = %+v, want no message and %v", got, errTimeout)
	}
}

func TestOctetsAreTakenAsAMessage(t *testing.T) {
	wire, err := msg(t, dns.RcodeNameError).Pack()
	if err != nil {
		t.Fatal(err)
	}
	q := newInquiry(client{})
	if n, err := q.Write(wire); n != len(wire) || err != nil {
		t.Errorf("Write = %d, %v, want %d", n, err, len(wire))
	}
	if _, err := q.Write([]byte("no message")); err == nil {
		t.Error("Write took octets that are no message")
	}
	q.finish(outcome{})
	if _, err := q.Write(wire); !errors.Is(err, errLate) {
		t.Errorf("Write after the end = %v, want %v", err, errLate)
	}
	if got := q.outcome(); got.msg == nil || got.msg.Rcode != dns.RcodeNameError {
		t.Errorf("message = %v, want the one written", got.msg)
	}
}

// touchy fails the test if a candidate gets at the client's connection.
type touchy struct {
	test.ResponseWriter
	t *testing.T
}

func (w *touchy) Close() error        { w.t.Error("Close got to the client"); return nil }
func (w *touchy) Hijack()             { w.t.Error("Hijack got to the client") }
func (w *touchy) TsigTimersOnly(bool) { w.t.Error("TsigTimersOnly got to the client") }
func (w *touchy) Write(b []byte) (int, error) {
	w.t.Error("Write got to the client")
	return len(b), nil
}
func (w *touchy) WriteMsg(*dns.Msg) error { w.t.Error("WriteMsg got to the client"); return nil }
func (w *touchy) TsigStatus() error       { return dns.ErrSig }

func TestTheWriterBelowSeesTheClientAndCannotTouchIt(t *testing.T) {
	w := &touchy{t: t}
	q := newInquiry(newClient(w))
	if q.LocalAddr().String() != w.LocalAddr().String() || q.RemoteAddr().String() != w.RemoteAddr().String() {
		t.Errorf("addresses = %v, %v, want the client's", q.LocalAddr(), q.RemoteAddr())
	}
	if !errors.Is(q.TsigStatus(), dns.ErrSig) {
		t.Errorf("TsigStatus = %v, want the client's", q.TsigStatus())
	}
	q.Hijack()
	q.TsigTimersOnly(true)
	if err := errors.Join(q.Close(), q.WriteMsg(msg(t, 0))); err != nil {
		t.Error(err)
	}
}
