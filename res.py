import re,sys
# resolve(file, [choices]) each conflict: 'o' ours,'t' theirs,'b' both, or literal string
def resolve(path, choices):
    s=open(path).read()
    it=iter(choices)
    def f(m):
        c=next(it)
        if c=='o': return m.group(1)
        if c=='t': return m.group(2)
        if c=='b': return m.group(1)+m.group(2)
        return c
    s=re.sub(r'<<<<<<< [^\n]*\n(.*?)=======\n(.*?)>>>>>>> [^\n]*\n', f, s, flags=re.S)
    open(path,'w').write(s)
