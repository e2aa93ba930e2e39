//! Colours that stay apart for colour-blind readers and in black and white: Okabe and Ito's set
//! (<https://jfly.uni-koeln.de/color/>), with tints of it where two would have the same lightness.

/// Okabe-Ito blue.
pub(crate) const BLUE: &str = "#0072B2";
/// A tint of Okabe-Ito sky blue.
pub(crate) const LIGHT_BLUE: &str = "#8CCBEF";
/// Okabe-Ito orange.
pub(crate) const ORANGE: &str = "#E69F00";
/// A tint of orange.
pub(crate) const LIGHT_ORANGE: &str = "#F5CE7A";
/// Okabe-Ito vermillion.
pub(crate) const VERMILLION: &str = "#D55E00";
/// Okabe-Ito bluish green.
pub(crate) const GREEN: &str = "#009E73";
/// A tint of bluish green.
pub(crate) const LIGHT_GREEN: &str = "#7ACBB1";
/// Okabe-Ito reddish purple.
pub(crate) const PURPLE: &str = "#CC79A7";
/// Okabe-Ito sky blue.
pub(crate) const SKY_BLUE: &str = "#56B4E9";
/// Okabe-Ito black.
pub(crate) const BLACK: &str = "#000000";
/// A tint of vermillion for time without work.
pub(crate) const IDLE: &str = "#F9DDD3";

/// Distances between colours as they are seen.
#[cfg(test)]
pub(crate) mod vision {
    /// Full dichromacy, matrices on linear RGB of Machado, Oliveira and Fernandes 2009 (severity 1.0).
    pub const PROTANOPIA: [[f64; 3]; 3] = [
        [0.152_286, 1.052_583, -0.204_868],
        [0.114_503, 0.786_281, 0.099_216],
        [-0.003_882, -0.048_116, 1.051_998],
    ];
    pub const DEUTERANOPIA: [[f64; 3]; 3] = [
        [0.367_322, 0.860_646, -0.227_968],
        [0.280_085, 0.672_501, 0.047_413],
        [-0.011_820, 0.042_940, 0.968_881],
    ];
    pub const NORMAL: [[f64; 3]; 3] = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]];

    fn linear(colour: &str) -> [f64; 3] {
        [1, 3, 5].map(|i| {
            let c = f64::from(u8::from_str_radix(&colour[i..i + 2], 16).unwrap()) / 255.0;
            if c <= 0.04045 { c / 12.92 } else { ((c + 0.055) / 1.055).powf(2.4) }
        })
    }

    /// CIE L*a*b* (D65) as an eye of this kind sees it.
    pub fn lab(colour: &str, eye: &[[f64; 3]; 3]) -> [f64; 3] {
        let rgb = linear(colour);
        let [r, g, b] = eye.map(|row| row.iter().zip(rgb).map(|(m, c)| m * c).sum::<f64>().max(0.0));
        let f = |t: f64| if t > 0.008_856 { t.cbrt() } else { 7.787 * t + 16.0 / 116.0 };
        let x = f((0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.950_47);
        let y = f(0.2126 * r + 0.7152 * g + 0.0722 * b);
        let z = f((0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.088_83);
        [116.0 * y - 16.0, 500.0 * (x - y), 200.0 * (y - z)]
    }

    /// CIE76 distance as an eye of this kind sees it.
    pub fn distance(a: &str, b: &str, eye: &[[f64; 3]; 3]) -> f64 {
        lab(a, eye).iter().zip(lab(b, eye)).map(|(p, q)| (p - q).powi(2)).sum::<f64>().sqrt()
    }

    /// L*, what black and white keeps.
    pub fn lightness(colour: &str) -> f64 {
        lab(colour, &NORMAL)[0]
    }

    #[test]
    fn lightness_of_known_colours() {
        for (colour, expected) in
            [("#000000", 0.0), ("#ffffff", 100.0), ("#777777", 50.03), ("#ff0000", 53.24)]
        {
            assert!((lightness(colour) - expected).abs() < 0.02, "{colour}: {}", lightness(colour));
        }
    }
}
