package pool

const (
	// linkMemory is how many exchanges the loss of a link is known from.
	linkMemory = 64
	// A link is lossy from this share on, and badly so from that. One loss in the last
	// 28 exchanges is 1 %.
	lossyFrom, badFrom = 0.01, 0.03
)

// link is how much gets lost on the way to a member that lives: a moving share.
type link float64

func (l *link) lost()   { *l += (1 - *l) / linkMemory }
func (l *link) passed() { *l -= *l / linkMemory }

// lossy reports whether packets get lost now and then.
func (l link) lossy() bool { return l >= lossyFrom }

// spareMisses returns how many more probes must miss than where nothing gets lost: at
// a loss of 5 %, two in a row are lost once in 400 times, four once in 160,000.
func (l link) spareMisses() int {
	switch {
	case l >= badFrom:
		return 2
	case l.lossy():
		return 1
	}
	return 0
}
