package status

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"steadfast.internal/plugin/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m, "/internal/status") }

const token = "of-16-characters-or-more"

// writeToken writes a file with that in it, for who steers.
func writeToken(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// newTestPage returns a page with one section, and what was done by its actions.
func newTestPage(report Report) (*Page, *[]string) {
	page, did := new(Page), new([]string)
	act := func(name string) Action {
		return Action{Name: name, Do: func(who, target string) (int, error) {
			switch target {
			case "nobody":
				return 0, ErrNoTarget
			case "busy":
				return 0, errors.New("not now")
			}
			*did = append(*did, who+" "+name+" "+target)
			return 2, nil
		}}
	}
	page.Add(Section{Name: "things", Report: func() Report { return report }, Actions: []Action{act("drain"), act("ready")}})
	return page, did
}

// newTestServer returns a server that does not listen.
func newTestServer(page *Page, private bool, tokenFile string) *Server {
	s := &Server{page: page, private: private}
	s.Use(tokenFile)
	return s
}

// request makes one that is in order, but for what options change.
func request(method, target string, options ...func(*http.Request)) *http.Request {
	body := ""
	if method == http.MethodPost {
		body = "x=y"
	}
	r := httptest.NewRequest(method, target, strings.NewReader(body))
	r.Host, r.RemoteAddr = "127.0.0.1:8053", "127.0.0.1:40000"
	if body != "" {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for _, option := range options {
		option(r)
	}
	return r
}

func host(h string) func(*http.Request) { return func(r *http.Request) { r.Host = h } }
func with(name, value string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Add(name, value) }
}

func form(text string) func(*http.Request) {
	return func(r *http.Request) {
		*r = *httptest.NewRequest(r.Method, r.URL.String(), strings.NewReader(text)).WithContext(r.Context())
		r.Host, r.RemoteAddr = "127.0.0.1:8053", "127.0.0.1:40000"
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
}

func password(p string) func(*http.Request) {
	return func(r *http.Request) { r.SetBasicAuth("anybody", p) }
}

func TestWhoMayAskForWhat(t *testing.T) {
	good := with("Authorization", "Bearer "+token)
	const drain = "/control?action=drain&target=x"
	for name, tc := range map[string]struct {
		request *http.Request
		public  bool // the address is not loopback
		noToken bool // there is no token file
		want    int
	}{
		"the page":                             {request: request("GET", "/"), want: 200},
		"its head":                             {request: request("HEAD", "/"), want: 200},
		"the JSON":                             {request: request("GET", "/status.json"), want: 200},
		"the page, where nobody steers":        {request: request("GET", "/"), noToken: true, want: 200},
		"something else":                       {request: request("GET", "/metrics"), want: 404},
		"a path that leads back":               {request: request("GET", "/x/../status.json"), want: 404},
		"a POST of the page":                   {request: request("POST", "/", good), want: 405},
		"a PUT of the JSON":                    {request: request("PUT", "/status.json", good), want: 405},
		"a name as Host":                       {request: request("GET", "/", host("rebound.example:8053")), want: 403},
		"a name like localhost as Host":        {request: request("GET", "/", host("localhost.example")), want: 403},
		"a name like an address as Host":       {request: request("GET", "/", host("127.0.0.1.example:8053")), want: 403},
		"no Host":                              {request: request("GET", "/", host("")), want: 403},
		"localhost as Host":                    {request: request("GET", "/", host("localhost:8053")), want: 200},
		"localhost without a port":             {request: request("GET", "/", host("LOCALHOST")), want: 200},
		"an IPv6 address":                      {request: request("GET", "/", host("[::1]:8053")), want: 200},
		"an IPv6 address without a port":       {request: request("GET", "/", host("[::1]")), want: 200},
		"another address than ours":            {request: request("GET", "/", host("192.0.2.1")), want: 200},
		"a page of another site":               {request: request("GET", "/", with("Origin", "http://other.example")), want: 403},
		"a page of our own":                    {request: request("GET", "/", with("Origin", "http://127.0.0.1:8053")), want: 200},
		"of our own, behind a proxy with TLS":  {request: request("GET", "/", with("Origin", "https://127.0.0.1:8053")), want: 200},
		"of another port":                      {request: request("GET", "/", with("Origin", "http://127.0.0.1:8080")), want: 403},
		"of a page that hides who it is":       {request: request("GET", "/", with("Origin", "null")), want: 403},
		"two Origins":                          {request: request("GET", "/", with("Origin", "http://127.0.0.1:8053"), with("Origin", "http://other.example")), want: 403},
		"a control":                            {request: request("POST", drain, good), want: 200},
		"a control by a form":                  {request: request("POST", "/control", form("action=drain&target=x&token="+token)), want: 200},
		"a form with the token's file":         {request: request("POST", "/control", form("action=drain&target=x&token="+token+"%0A")), want: 200},
		"a button of the page":                 {request: request("POST", drain, form("token="+token), with("Accept", "text/html,*/*")), want: 303},
		"a control by GET":                     {request: request("GET", drain, good), want: 405},
		"a control without a token":            {request: request("POST", drain), want: 401},
		"a control with an empty one":          {request: request("POST", drain, with("Authorization", "Bearer ")), want: 401},
		"a control with a wrong one":           {request: request("POST", drain, with("Authorization", "Bearer "+token+"x")), want: 401},
		"a control with half of it":            {request: request("POST", drain, with("Authorization", "Bearer "+token[:16])), want: 401},
		"a control with it in the URL":         {request: request("POST", drain+"&token="+token), want: 401},
		"a control with it as a password":      {request: request("POST", drain, password(token)), want: 401},
		"a control of another site":            {request: request("POST", drain, good, with("Origin", "http://other.example")), want: 403},
		"a control under another name":         {request: request("POST", drain, good, host("rebound.example")), want: 403},
		"a control where nobody steers":        {request: request("POST", drain, good), noToken: true, want: 404},
		"another action":                       {request: request("POST", "/control?action=format&target=x", good), want: 400},
		"no action":                            {request: request("POST", "/control", good), want: 400},
		"another target":                       {request: request("POST", "/control?action=drain&target=nobody", good), want: 404},
		"what cannot be done now":              {request: request("POST", "/control?action=drain&target=busy", good), want: 409},
		"a form that is none":                  {request: request("POST", "/control", form("%zz"), good), want: 400},
		"a form that is too large":             {request: request("POST", drain, form("x="+strings.Repeat("y", maxBody)), good), want: 413},
		"the page from elsewhere":              {request: request("GET", "/"), public: true, want: 401},
		"the JSON from elsewhere":              {request: request("GET", "/status.json"), public: true, want: 401},
		"from elsewhere with the token":        {request: request("GET", "/status.json", good), public: true, want: 200},
		"from elsewhere with it as a password": {request: request("GET", "/", password(token)), public: true, want: 200},
		"from elsewhere with a wrong password": {request: request("GET", "/", password("x")), public: true, want: 401},
		"a control from elsewhere":             {request: request("POST", drain, good), public: true, want: 200},
	} {
		t.Run(name, func(t *testing.T) {
			page, did := newTestPage(Report{})
			file := writeToken(t, token+"\n")
			if tc.noToken {
				file = ""
			}
			got := httptest.NewRecorder()
			newTestServer(page, !tc.public, file).ServeHTTP(got, tc.request)
			if got.Code != tc.want {
				t.Errorf("status %d, want %d: %s", got.Code, tc.want, got.Body)
			}
			wantDone := tc.want < 400 && tc.request.Method == http.MethodPost
			if done := len(*did) > 0; done != wantDone || done && (*did)[0] != "127.0.0.1:40000 drain x" {
				t.Errorf("done: %q", *did)
			}
			for name, want := range map[string]string{
				"X-Frame-Options": "DENY", "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff",
			} {
				if value := got.Header().Get(name); value != want {
					t.Errorf("%s: %q, want %q", name, value, want)
				}
			}
			if csp := got.Header().Get("Content-Security-Policy"); !strings.HasPrefix(csp, "default-src 'none'; style-src 'unsafe-inline'") {
				t.Errorf("Content-Security-Policy: %q", csp)
			}
		})
	}
}

func TestTheTokenIsReadEachTime(t *testing.T) {
	page, _ := newTestPage(Report{})
	file := writeToken(t, token)
	s := newTestServer(page, true, file)
	post := func(token string) int {
		got := httptest.NewRecorder()
		s.ServeHTTP(got, request("POST", "/control?action=drain&target=x", with("Authorization", "Bearer "+token)))
		return got.Code
	}
	const other = "another token of enough characters"
	if post(token) != 200 || post(strings.ReplaceAll(other, " ", "-")) != 401 {
		t.Fatal("the token is not the file's")
	}
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(other, " ", "-")), 0o600); err != nil {
		t.Fatal(err)
	}
	if post(token) != 401 || post(strings.ReplaceAll(other, " ", "-")) != 200 {
		t.Error("the old token is in force")
	}
	os.Remove(file)
	if got := post(token); got != 503 {
		t.Errorf("without the file: status %d, want 503", got)
	}
	s.Use("")
	if got := post(token); got != 404 {
		t.Errorf("where nobody steers any more: status %d, want 404", got)
	}
}

func TestReadToken(t *testing.T) {
	for name, tc := range map[string]struct{ text, want, err string }{
		"sixteen characters":      {text: "0123456789abcdef", want: "0123456789abcdef"},
		"with space around it":    {text: " \t0123456789abcdef\r\n", want: "0123456789abcdef"},
		"fifteen":                 {text: "0123456789abcde\n", err: "less than 16"},
		"nothing":                 {text: "", err: "less than 16"},
		"1,024":                   {text: strings.Repeat("x", 1024), want: strings.Repeat("x", 1024)},
		"1,025":                   {text: strings.Repeat("x", 1025), err: "more than 1024"},
		"two lines":               {text: "0123456789abcdef\n0123456789abcdef", err: "not printable ASCII"},
		"what is no ASCII":        {text: "0123456789abcdeü", err: "not printable ASCII"},
		"more than anybody means": {text: strings.Repeat("x", 2<<20), err: "more than"},
	} {
		t.Run(name, func(t *testing.T) {
			file := writeToken(t, tc.text)
			got, err := ReadToken(file)
			if got != tc.want || (err == nil) != (tc.err == "") || err != nil && (!strings.Contains(err.Error(), tc.err) || !strings.Contains(err.Error(), file)) {
				t.Errorf("ReadToken = %q, %v, want %q, %q", got, err, tc.want, tc.err)
			}
		})
	}
	if _, err := ReadToken(t.TempDir()); err == nil || !strings.Contains(err.Error(), "a directory") {
		t.Errorf("a directory: error %v", err)
	}
}

// TestWhatIsShownIsEscaped wherever it stands: an upstream's name is not ours.
func TestWhatIsShownIsEscaped(t *testing.T) {
	const evil = `"><script>alert('1')</script>&action=ready#`
	page, _ := newTestPage(Report{
		Value:  map[string]string{"name": evil},
		Tables: []Table{{Caption: evil, Columns: []string{evil}, Rows: []Row{{Cells: []string{evil}, Target: evil}}}},
	})
	s := newTestServer(page, true, writeToken(t, token))
	got := httptest.NewRecorder()
	s.ServeHTTP(got, request("GET", "/"))
	body := got.Body.String()
	if strings.Contains(body, "<script") || !strings.Contains(body, "&lt;script&gt;") {
		t.Errorf("the page has a script:\n%s", body)
	}
	const want = `formaction="control?action=drain&amp;target=%22%3e%3cscript%3ealert%28%271%27%29%3c%2fscript%3e%26action%3dready%23"`
	if !strings.Contains(body, want) {
		t.Errorf("the page has not %s:\n%s", want, body)
	}
	got = httptest.NewRecorder()
	s.ServeHTTP(got, request("GET", "/status.json"))
	var all map[string]map[string]string
	if err := json.Unmarshal(got.Body.Bytes(), &all); err != nil || all["things"]["name"] != evil || strings.Contains(got.Body.String(), "<script") {
		t.Errorf("%v, %s", err, got.Body)
	}
	if kind := got.Header().Get("Content-Type"); kind != "application/json" {
		t.Errorf("Content-Type %q", kind)
	}
}

func TestThePageNeedsNothingFromElsewhere(t *testing.T) {
	page, _ := newTestPage(Report{Tables: []Table{{Caption: "c", Columns: []string{"a"}, Rows: []Row{{Cells: []string{"b"}, Target: "x"}, {Cells: []string{"d"}}}}}})
	for file, wantButtons := range map[string]int{"": 0, writeToken(t, token): 2} {
		got := httptest.NewRecorder()
		newTestServer(page, true, file).ServeHTTP(got, request("GET", "/"))
		body := got.Body.String()
		for _, part := range []string{"http:", "https:", "src=", "<script", "<link", "url(", "@import"} {
			if strings.Contains(body, part) {
				t.Errorf("the page has %q", part)
			}
		}
		if n := strings.Count(body, "<button form="); n != wantButtons {
			t.Errorf("%d buttons, want %d:\n%s", n, wantButtons, body)
		}
		// Enter in the field of the token presses the first button of the form.
		if first := strings.Index(body, "<button"); first >= 0 && !strings.HasPrefix(body[first:], "<button disabled ") {
			t.Errorf("Enter does %.80s", body[first:])
		}
		if hasForm := strings.Contains(body, "<form"); hasForm != (file != "") {
			t.Errorf("there is a form: %v", hasForm)
		}
	}
}
