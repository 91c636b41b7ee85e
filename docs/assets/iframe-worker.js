// Browsers run no workers for pages opened from a file, and the theme's search is one. Where that is so, a hidden frame
// takes the worker's place: it loads the same script, and messages pass in both directions.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super()
      this.waiting = []
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.body.append(this.frame)
      const inside = this.frame.contentWindow
      const script = inside.document.createElement("script")
      inside.postMessage = message => this.dispatchEvent(new MessageEvent("message", {data: message}))
      script.src = url
      script.onload = () => {
        this.inside = inside
        this.waiting.splice(0).forEach(message => this.postMessage(message))
      }
      inside.document.body.append(script)
    }

    postMessage(message) {
      if (this.inside) this.inside.dispatchEvent(new MessageEvent("message", {data: message}))
      else this.waiting.push(message)
    }

    terminate() {
      this.frame.remove()
    }
  }
  window.Worker = window.IFrameWorker
}
